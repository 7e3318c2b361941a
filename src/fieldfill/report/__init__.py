"""The report: one self-contained HTML page, and one static picture, about a fill.

``contents`` reads what will be drawn, ``charts`` and ``maps`` draw with plotly, ``page`` writes the HTML, ``style``
holds its look and its few lines of script, ``picture`` draws with matplotlib.
"""

from fieldfill.report.contents import Story
from fieldfill.report.page import write_report
from fieldfill.report.picture import picture

__all__ = ["Story", "picture", "write_report"]
