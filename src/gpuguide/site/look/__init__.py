"""How the site looks: templates, style sheets, fonts and formulas."""
