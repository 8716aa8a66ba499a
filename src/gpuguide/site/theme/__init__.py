"""How the site looks: what is put on top of the theme, and what is taken away from it.

Templates stand in ``templates``, styles and scripts in ``static``; :mod:`~gpuguide.site.theme.assets` hands them to
Sphinx. The theme's stylesheet and icons are cut down to what the pages use (:mod:`~gpuguide.site.theme.stylesheet`,
with :mod:`~gpuguide.site.theme.fonts`). Formulas become MathML (:mod:`~gpuguide.site.theme.mathematics`), and
attributes in the API reference are described as they were written (:mod:`~gpuguide.site.theme.attribute_texts`). Who
shares a page's address shares a picture with it (:mod:`~gpuguide.site.theme.social_preview`).
"""
