"""The measurements of a bench in the device worker: trials of compute, transfers and collectives, with samples."""
