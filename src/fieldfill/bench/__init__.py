"""The paper's tables, claims and figures, the methods that people use, and the demonstration.

``cases`` makes the data, ``methods`` names what fills them, ``benches`` lists the rows, ``runner`` measures them and
``rows`` keeps them, one JSON object per line; ``summary``, ``result_tables``, ``claims``, ``results_page`` and
``figures`` read them. ``study`` runs the scripts in ``benchmarks/``, which answer questions beside the paper's.
"""
