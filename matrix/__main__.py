from matrix.cli import main

main()
