"""Made by `make proto`; never edited by hand."""
