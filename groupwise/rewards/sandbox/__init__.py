"""Where programs that models write run: nothing of the machine can be changed, read or reached.

`ways` finds out once how this machine can isolate, by trying, and refuses where it cannot.
`filter` lists the system calls that a program may make. `launch` is the script that shuts itself
in and then becomes the program.
"""
