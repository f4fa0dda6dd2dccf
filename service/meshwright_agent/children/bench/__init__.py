"""What a bench measures, in the device worker: trials of compute, transfers and collectives, in order, with samples."""
