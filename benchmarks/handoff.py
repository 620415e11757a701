"""The handoff between two processes beside what one would use instead: `omniwire bench`."""

from omniwire.bench.command import bench_command

if __name__ == "__main__":
    bench_command()
