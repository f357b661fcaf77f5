"""What underlap costs, measured beside HTA and beside a floor that only reads the file. Not part of the package."""
