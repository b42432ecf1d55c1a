"""What a model's files hold that deserves a look before they are trusted.

Reading order: `report` (what is found), `scan` (all of it, file by file), then the parts:
`weights`, `templates`, `tokens`, `metadata`. Nothing here changes anything, and nothing of a file
is run but its chat template, in the sandbox that every template runs in.
"""

from rml.scan.report import FileFacts, Finding, Report
from rml.scan.scan import scan

__all__ = ["FileFacts", "Finding", "Report", "scan"]
