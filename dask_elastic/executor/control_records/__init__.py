"""Control records of inputs: watermarks, barriers and ends, in one order with the batches."""
