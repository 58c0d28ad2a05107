"""Programs for working on trackside. They are not part of the package."""
