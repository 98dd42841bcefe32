"""What stages hand on, declared once: the units of each step, the facts in their marks, and the files beside them.

A step is a folder of `work/`. Each unit leaves its mark there, and files with its name and an ending for each kind.
Each module declares what one stage leaves. Stages import this room, and never each other.
"""
