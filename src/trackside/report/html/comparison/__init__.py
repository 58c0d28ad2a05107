"""The comparison of two runs as a page: `page` assembles the sections, `values` and `changes` are what they share."""
