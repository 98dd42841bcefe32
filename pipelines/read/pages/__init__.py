"""Web archives: records, pages, image elements."""
