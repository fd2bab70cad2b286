"""A campaign against the library: random cases, each drawn from one whole number, until the time is up.

    python -m campaign --minutes 10                   every part; prints the seeds, ends with 1 where a case failed
    python -m campaign --part reference --cases 500   one part, so many cases
    python -m campaign --replay reference:17          one case again, and what was found
    python -m campaign --shrink reference:17          its settings simplified one at a time, and a script to paste

A case either gives the right number, or is refused by an error of ``neuralfde.errors`` that says what to do instead;
anything else fails. What is right is said by rule (:mod:`campaign.compare`), never by a tolerance made for a case.
"""
