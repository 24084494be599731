"""Builds the library, and a wheel for one platform and every Python 3: nothing in it uses the ABI of Python."""

import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class Build(build_py):
    def run(self) -> None:
        if not self.editable_mode:  # there, build.sh is run by hand or by scripts/setup.sh
            subprocess.run(["sh", "build.sh"], cwd=Path(__file__).resolve().parent, check=True)
        super().run()


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Compiled(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # so that the wheel is for one platform


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Compiled)
