"""What looks at the site and says what is wrong: the lint for pages and the list before a release."""
