"""What a prefill asks of a GPU, counted without one: kernels, copies, and waits for the device.

python -m benchmarks.launches

tally          what is counted, and where in the code it was asked for
gpu            a GPU that is none: tensors that say "cuda" and compute on the CPU
driver         what stands for `torch.cuda` and for the Triton kernels meanwhile
triton_work    what each Triton kernel computes, in torch
prefills       an engine on that GPU, and one request to it for every method
"""
