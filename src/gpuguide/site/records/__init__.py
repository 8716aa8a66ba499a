"""What records, data sheets, claims and models say on a page: numbers, figures, tables, calculators, downloads."""
