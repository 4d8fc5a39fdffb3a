"""Launchers, plug-ins by name: processes of this machine, jobs of a Slurm cluster; by submitit."""
