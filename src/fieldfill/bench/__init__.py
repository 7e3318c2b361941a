"""The paper's tables, claims and figures, and the methods people really use, measured by one resumable command.

``cases`` makes the data, ``methods`` names what fills them, ``benches`` lists the rows, ``run`` measures them, ``rows``
keeps them as JSON; ``summary``, ``tables``, ``claims`` and ``figures`` read what is there. ``commands`` is the group of
sub-commands ``fieldfill bench``; it imports the others only when they are needed, so that ``--help`` need not wait.
"""
