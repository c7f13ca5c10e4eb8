"""DP-SGD with torch: any module on a CPU, and many models at once on CUDA.

===================  ===============================================================================
clipped_sums         clip factors, norms and sums of gradients, the sums of linear models
modules              sums of clipped gradients of any module
module_taps          its gradients, vectorised over examples; LSTM, GRU and RNN
tapped_layers        layers that record their inputs and slopes
plain_chain          which chains of layers have kernels of their own
layer_chain          sums of clipped gradients of these chains
convolutions         convolutions of many models
layer_kernels        CUDA kernels of these layers and of group normalisation (Triton)
model_group          training steps of a group of models
device_keystream     random numbers on a torch device
noise_kernels        CUDA kernel of these random numbers (Triton)
module_state         what a module draws, can reach and change; how that is set back; one vector
===================  ===============================================================================
"""
