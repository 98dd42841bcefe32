"""What stages hand on, declared once: the units of each step, the facts in their marks, and the tables beside them.

A step is a folder of `work/`. Each unit leaves its mark there, and tables with its name and an ending for each kind.
Each module declares what one stage leaves. Stages import this room, and never each other.
"""
