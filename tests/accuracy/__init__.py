"""The cost model beside published runs and measured peaks: their rows, and its errors.

Rule: no formula of the cost model lives here, and no figure of a run lives there.
"""
