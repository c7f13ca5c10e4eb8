"""Scripts that make the figures and tables of the documents. Run from the repository root.

``make figures`` runs all but those run by hand:

=======================  =======================================================================
``figures``              figures of the README and the docs
``interval_coverage``    coverage of the intervals of ``expost count``
``capped_truth``         answers under caps that are chosen next to the truth without caps
``chosen_caps``          groups answered if no cap is given, next to an oracle and to a guessed cap
``counting_comparison``  counts next to capped Laplace and Gaussian histograms
``audit``                audits of broken mechanisms, for docs/audit.md
``passed_is_true``       how often a certified model is truly above its bar
``fill_documents``       tables of the documents, from docs/results
``noise_reduction``      what noise reduction costs next to DP-SGD
``least_epsilon``        the least ε that reaches each goal on MNIST and Adult
``per_person``           five rows per person against one, for the same persons
``gallery``              tasks, outputs and pictures of docs/gallery.md
``screens``              the screens that the documents show
``demo``                 a goal and what reaching it cost, for ``make demo``
``server_pictures``      pictures of the pages of ``expost server start``
``default_grid``         why the default grid of ``expost tune`` is as it is, run by hand
``demo_server``          a server with made-up data, for ``make server``
``tune_counting``        search for the settings of Tables 1 and 2, run by hand
=======================  =======================================================================

Each one is run as ``python -m scripts.NAME``.
"""
