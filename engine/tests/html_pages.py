"""Parser for the tables of HTML pages."""

from html.parser import HTMLParser

from lit_engine.tools.pages.run_page import render_page
from lit_engine.tools.runs.reading import Run


class Page(HTMLParser):
    """Parser for a page's table cells and all resources that the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.links, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.tables[-1][-1][-1] += data.strip()


def tables(run):
    """Return the tables of a run's page. Each table is a dict from the first cell of a row to the row as a dict."""
    found = Page(render_page(Run.read(run))).tables
    return [{row[0]: dict(zip(head, row, strict=True)) for row in rows} for head, *rows in found]
