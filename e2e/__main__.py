from e2e.cli import main

main()
