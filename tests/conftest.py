"""Set-up of the whole suite: eight CPU devices, and a JAX that is hostile to mistakes."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
# Strict promotion is JAX's own guard against silent casts. Where third-party code cannot live with it, the test that
# runs that code lifts it with `jax.numpy_dtype_promotion("standard")`.
jax.config.update("jax_numpy_dtype_promotion", "strict")
