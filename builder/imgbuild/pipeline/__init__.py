"""The steps of lock, build, audit and rebuild in order. Read this first."""
