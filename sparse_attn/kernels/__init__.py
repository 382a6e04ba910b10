"""Operations of sparse attention: each a Triton kernel and its specification in plain torch.

Every package here offers checked functions that run the kernel for tensors on a GPU that Triton
compiles for, or under Triton's interpreter where `TRITON_INTERPRET=1` asks for it, and the
reference everywhere else. Nothing loads Triton before a kernel is needed.
"""

__all__: list[str] = []
