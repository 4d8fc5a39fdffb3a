"""Tables and pages made of run folders.

``pfl_bench.report.table`` formats rows, ``pfl_bench.report.page`` writes the HTML page. Nothing is
imported here, so that the command line starts without torch and matplotlib.
"""
