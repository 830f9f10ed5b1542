"""Given: tells vLLM where the platform is. Imported before vLLM knows its platform, so it imports nothing."""


def register() -> str:
    return "ray_cpu_platform.RayCpuPlatform"
