"""The cost model beside published runs: their rows, the errors of any predictor on rows that it has not seen, the page.

Rule: no formula of the cost model lives here, and no figure of a run lives there.
"""
