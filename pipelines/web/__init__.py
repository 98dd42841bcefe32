"""Images over HTTP: politely, bounded in time and bytes, nobody let in, and every failure with its reason.

`client.Client` is the face: URLs in, each out exactly once as a `Response`. Below it: `schedule` (who is asked next),
`hosts` (limits, pauses and health of each host), `transport` (one request; the only module that knows the HTTP
library), `robots`, `names` (DNS), `addresses` and `domains` (who may be asked at all), `budget` (bytes in flight).
"""
