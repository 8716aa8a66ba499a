"""How the site looks: what is put on top of the theme, and what is taken away from it.

Templates, styles and scripts of our own stand in ``theme`` (:mod:`~gpuguide.site.look.assets` hands them to Sphinx).
The theme's stylesheet and icons are cut down to what the pages use (:mod:`~gpuguide.site.look.stylesheet`, with
:mod:`~gpuguide.site.look.fonts`). Formulas become MathML (:mod:`~gpuguide.site.look.mathematics`), and attributes in
the API reference are described as they were written (:mod:`~gpuguide.site.look.attribute_texts`). Who shares a page's
address shares a picture with it (:mod:`~gpuguide.site.look.social_preview`).
"""
