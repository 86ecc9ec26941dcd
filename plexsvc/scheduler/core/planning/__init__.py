"""Planning in space and time: which node group a job shares, and who runs in it when. All pure."""
