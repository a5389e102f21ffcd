"""The documentation: pages in ``pages/``, and what is made of the code for them.

    python -m docs     writes the pages of ``pages/reference`` and the pictures again
    make docs          does that, and builds the site into ``build/site``

reference   the pages that are generated: options, settings, metrics, errors, commands, permissions, Python
pictures    the drawings in ``pages/images``
hooks       what mkdocs does beside its own: README is the front page, links that leave ``pages`` are followed
mkdocs.yml  the site: its order, its look
"""
