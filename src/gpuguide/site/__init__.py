"""The site: what turns pages, records and the library into the built documentation.

:mod:`~gpuguide.site.extension` is the Sphinx extension, which connects the parts. They stand in rooms, each of which
uses only those above it:

pages
    a page as its author writes it
execution
    how pages run
directives
    what records, data sheets and claims say on a page
notebooks
    every tutorial as something to take away
search_and_links
    how readers find things
theme
    how the site looks
build
    the command that builds
checks
    what says what is wrong with the site
"""
