"""The catalogue as static pages: targets, test records, differences, history, data for browsers."""
