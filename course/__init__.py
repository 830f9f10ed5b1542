"""Tools for the course's readers and authors. They import `mini_vllm`; it never imports them."""
