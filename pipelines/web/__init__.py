"""Images over HTTP: politely, bounded in time and bytes, never at private addresses, and every failure with its reason.

`client.Client` is the face: URLs in, each out exactly once as a `Response`. Below it: `schedule.fetching` (what becomes
of each URL), `schedule.schedule` (which request is next), `schedule.hosts` (limits, pauses and health of each host),
`schedule.budget` (bytes in flight), `http.transport` (one request; the only module that knows the HTTP library),
`http.names` (DNS), `policy` (robots.txt, headers, addresses), `journal` (outcomes, log, progress).
"""
