"""The shared pieces of every report: tables, plots, pages."""
