"""How runs are made: in this process or on workers, with checkpoints, and what a failure is.

``engine``        makes the runs of a selection and chooses among their outputs
``calls``         makes outputs, one or several together, and decides what a failure is
``workers``       sends runs to the workers of an executor; processes on this machine
``checkpoint``    keeps draws and finished outputs on disk, so that a selection can be resumed;
                  recognises the mechanisms, scores and data to which it belongs
``parts``         rows of a data set in parts, on threads, processes or a cluster
"""
