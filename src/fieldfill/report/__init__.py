"""The report: one self-contained HTML page, and one static picture, that tell what a fill did.

``story`` says what can be told and reads it for drawing, ``charts`` and ``maps`` draw with plotly, ``page``
writes the HTML, ``style`` holds its look and its few lines of script, ``picture`` draws with matplotlib.
"""

from fieldfill.report.page import write_report
from fieldfill.report.picture import picture
from fieldfill.report.story import Story

__all__ = ["Story", "picture", "write_report"]
