"""Adapters: many fine-tunes on one copy of the weights. Nothing is loaded while `enable_lora` is off.

A request names its adapter (`request.py`), which is read and checked before the request is queued
(`registry.py`, `lora_model.py`, `peft_helper.py`). It joins the engine at the seams that the other abilities
use: a rule at the gate of admission (`admission.py`), and a component of the model runner (`component.py`),
which puts adapters into slots (`worker_manager.py`) and adds their products to the linear layers'
(`layers.py`, `vocabulary.py`, `ops.py`).

Left out: experts, torch and graphs, ranks, several engines, speculation; each is refused by name.
"""
