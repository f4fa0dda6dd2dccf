"""A Slurm cluster on one machine: slurmd in the network namespace of each host, slurmctld in that of the first."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.agents import wait_for
from tests.deploy.charts import DEPLOY
from tests.deploy.slurm_node import SETTINGS
from tests.deploy.warm_client import start_client
from tests.process.namespaces import Network, build_prefix

COMMANDS = ("slurmctld", "slurmd", "scontrol", "sbatch")
MISSING = [name for name in COMMANDS if shutil.which(name) is None]
CONF = """\
ClusterName=meshwright
SlurmctldHost={names[0]}({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
PrologFlags=Alloc
SchedulerParameters=nohold_on_prolog_fail
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass
class Cluster:
    """Commands of a running cluster.

    Attributes:
        folder: configuration, logs, and what jobs wrote.
        network: its hosts; their names are the nodes'.
    """

    folder: Path
    network: Network

    def run(self, *command: str) -> str:
        """Runs a command of Slurm beside the hosts, which their bridge leads to; returns its output."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def submit(self, nodes: int) -> str:
        """Submits a job of whole nodes that writes their names; returns its id."""
        path = f"{self.folder}/job-$SLURM_JOB_ID"
        script = f"--wrap=scontrol show hostnames $SLURM_JOB_NODELIST >{path}.new && mv {path}.new {path}"
        return self.run("sbatch", "--parsable", "--requeue", f"--nodes={nodes}", "--output=/dev/null", script).strip()

    def start_now(self, job: str) -> None:
        """Starts a requeued job, which waits for two minutes otherwise, when the nodes are free.

        It starts a second later: a node refuses a credential of the second in which it revoked the job's last one, and
        Slurm then fails the job (`slurm_cred_revoked` and "Killing non-startable batch" in its source).
        """
        wait_for(
            lambda: "JobState=PENDING" in self.run("scontrol", "--oneliner", "show", "job", job),
            limit_s=60,
        )
        time.sleep(1.1)
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now")

    def read_job(self, job: str, *, limit_s: float) -> list[str]:
        """Waits until a job has run; returns its nodes."""
        path = self.folder / f"job-{job}"
        try:
            wait_for(path.exists, limit_s=limit_s)
        except AssertionError as error:
            shown = [self.run("scontrol", "--oneliner", "show", "job", job), *map(self.show_node, self.network.names)]
            log = (self.folder / "slurmctld.log").read_text()[-2000:]
            raise AssertionError("\n".join([*shown, log])) from error
        return path.read_text().split()

    def show_node(self, name: str) -> str:
        """Returns a node as scontrol shows it, in one line."""
        return self.run("scontrol", "--oneliner", "show", "node", name)


@contextlib.contextmanager
def start_slurm(network: Network, **settings: str) -> Iterator[Cluster]:
    """Yields a cluster whose nodes run the prolog and the epilog with these settings.

    Its folder is not pytest's, whose path is too long beside other processes: slurmstepd's sockets have 108 bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix="mw-"))
    cluster = Cluster(folder, network)
    (folder / "state").mkdir()
    own = {
        "MESHWRIGHT": f"{folder}/client-$SLURMD_NODENAME",
        "MESHWRIGHT_URL": "http://$SLURMD_NODENAME:8790",
        "MESHWRIGHT_RUNDIR": f"{folder}/leases-$SLURMD_NODENAME",
        "PATH": os.environ["PATH"],
        **settings,
    }
    (folder / "slurm.env").write_text("".join(f'{name}="{value}"\n' for name, value in own.items()))
    for script in ("prolog.sh", "epilog.sh"):
        text = (DEPLOY / "slurm" / script).read_text().replace(SETTINGS, str(folder / "slurm.env"))
        (folder / script).write_text(text)
        (folder / script).chmod(0o755)
    nodes = "\n".join(
        f"NodeName={name} NodeAddr={address} CPUs=1 State=UNKNOWN"
        for name, address in zip(network.names, network.addresses, strict=True)
    )
    conf = CONF.format(folder=folder, names=network.names, addresses=network.addresses, nodes=nodes)
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    daemons = [(network.names[0], ["slurmctld", "-D"])]
    daemons += [(name, ["slurmd", "-D", "-N", name]) for name in network.names]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in network.names:
            client = stack.enter_context(start_client(*build_prefix(name)))
            (folder / f"client-{name}").symlink_to(client)
        for host, command in daemons:
            process = subprocess.Popen(
                [*build_prefix(host), *command],
                env=cluster.environment,
                cwd=folder,  # where a core of slurmstepd goes
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        wait_for(lambda: all("State=IDLE " in cluster.show_node(name) for name in network.names), limit_s=60)
        yield cluster
