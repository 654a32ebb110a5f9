"""Job specs: JSON of a request <-> JobSpec.

`job` parses the body of a submit; the other modules each parse some of its fields. `consistency` refuses
fields that contradict each other. `job_body` is the way back, on which updates are based. Errors are
BadField: they name the field as the user wrote it, and say what would be accepted.
"""
