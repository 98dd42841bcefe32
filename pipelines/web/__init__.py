"""Images over HTTP: politely, bounded in time and bytes, never at private addresses, and every failure with its reason.

`client.Client` is the face: URLs in, each out exactly once as a `Response`. Below it: `fetching` (what becomes of each
URL), `schedule` (which request is next, bytes in flight), `hosts` (limits, pauses and health of each host), `transport`
(one request, DNS), `robots` and `addresses` (what may be asked), `calls` (the data of it all). `journal` and `log` keep
what came.
"""
