"""How readers find things: links to terms and names, the search box, the repository, addresses that lead nowhere."""
